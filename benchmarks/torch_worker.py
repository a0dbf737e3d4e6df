"""The all-convolutional residual net of Table 1 in plain PyTorch, timed on request.

`benchmarks.train_step` runs this file. It writes the settings as one line of JSON, and
reads a line that describes the machine and the net. Then it writes a number of steps
per line, and reads how many seconds they took, by the clock and of the CPU. One batch
stays on the device: only forward pass, backward pass and update are timed.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional

# The classes and size of CIFAR-10's images, and what all nets of Table 1 have in
# common.
NUM_CLASSES = 10
IMAGE_PIXELS = 32
STEM_WIDTH = 16
KERNEL = 3


class Block(nn.Module):
    """x + C2(ReLU(C1 x)); average pool and zero channels where shapes change."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(
            channels_in, channels, KERNEL, stride, KERNEL // 2, bias=False
        )
        self.conv2 = nn.Conv2d(channels, channels, KERNEL, 1, KERNEL // 2, bias=False)
        before = (channels - channels_in) // 2
        self.stride = stride
        self.added = (before, channels - channels_in - before)
        for conv in (self.conv1, self.conv2):
            nn.init.normal_(conv.weight, std=1 / (KERNEL**2 * channels))

    def forward(self, x):
        h = self.conv2(functional.relu(self.conv1(x)))
        if self.stride > 1:
            x = functional.avg_pool2d(x, self.stride)
        if any(self.added):
            x = functional.pad(x, (0, 0, 0, 0, *self.added))
        return x + h


class AllConvResidual(nn.Module):
    """Stem, stages of blocks, global mean, fixed random projection."""

    def __init__(self, blocks_per_stage, widths):
        super().__init__()
        self.stem = nn.Conv2d(3, STEM_WIDTH, KERNEL, padding=KERNEL // 2, bias=False)
        nn.init.normal_(self.stem.weight, std=1 / (KERNEL * STEM_WIDTH**0.5))
        blocks = []
        channels = STEM_WIDTH
        for stage, (count, width) in enumerate(
            zip(blocks_per_stage, widths, strict=True)
        ):
            for index in range(count):
                blocks.append(
                    Block(channels, width, 2 if stage > 0 and index == 0 else 1)
                )
                channels = width
        self.blocks = nn.Sequential(*blocks)
        limit = (3 / channels) ** 0.5
        projection = torch.empty(channels, NUM_CLASSES).uniform_(-limit, limit)
        self.register_buffer("projection", projection)

    def forward(self, x):
        return self.blocks(self.stem(x)).float().mean((2, 3)) @ self.projection


def _multiplies_bfloat16(device: str) -> bool:
    """Whether the device has instructions for products of bfloat16."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    able = torch.cpu.get_capabilities()
    return any(able.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    net = AllConvResidual(settings["blocks_per_stage"], settings["widths"])
    net.to(device, memory_format=torch.channels_last)
    batch = settings["batch_examples"]
    rate = settings["learning_rate"]
    optimizer = torch.optim.SGD(
        net.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4
    )
    images = torch.randn(batch, 3, IMAGE_PIXELS, IMAGE_PIXELS, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(NUM_CLASSES, (batch,), device=device)
    # most CPU users run it eagerly
    forward = torch.compile(net) if device == "cuda" else net
    in_bfloat16 = settings["compute_dtype"] == "bfloat16"

    def step():
        with torch.autocast(device, dtype=torch.bfloat16, enabled=in_bfloat16):
            loss = functional.cross_entropy(forward(images).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    step()
    described = {
        "torch": torch.__version__,
        "device": device,
        "threads": torch.get_num_threads(),
        "multiplies_bfloat16": _multiplies_bfloat16(device),
    }
    described["parameters"] = sum(p.numel() for p in net.parameters())
    print(json.dumps(described), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        cpu_started = time.process_time()
        for _ in range(int(line)):
            loss = step()
        loss.item()  # waits for the device
        seconds = {
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - cpu_started,
        }
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
