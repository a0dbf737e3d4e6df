"""A training of seconds for tests of clusters/: records, checkpoints, SIGTERM, as the real one.

A checkpoint says how many records there were, and a run that has fewer cannot be taken up: this is
what `identity_matters.records.RunDir.rewind` refuses. Ends with 3 then, with 75 when told to stop.
It needs nothing but Python, so that it starts at once.
"""

import os
import pathlib
import shutil
import signal
import sys
import time

STEPS = 60
STEPS_PER_CHECKPOINT = 3
STEP_SECONDS = 0.01


def main() -> int:
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    (results,) = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--results_dir=")]
    run = pathlib.Path(results) / "toy" / "seed=0"
    checkpoints = run / "checkpoints" / "cell=0"
    checkpoints.mkdir(parents=True, exist_ok=True)
    records = run / "metrics.jsonl"
    lines = records.read_text().splitlines() if records.exists() else []
    saved = sorted(int(path.name) for path in checkpoints.iterdir() if path.name.isdigit())
    step = saved[-1] if saved else 0
    print(f"from step {step} on with {len(lines)} records", flush=True)
    if len(lines) < step:
        return 3
    records.write_text("".join(f"{line}\n" for line in lines[:step]))
    while step < STEPS and not stop:
        time.sleep(STEP_SECONDS)
        with open(records, "a") as file:
            file.write(f"{step}\n")
        step += 1
        if step % STEPS_PER_CHECKPOINT == 0:
            _save(checkpoints, step)
    if stop:
        _save(checkpoints, step)
        return 75
    (run / "summary.json").write_text('{"status": "done"}')
    return 0


def _save(checkpoints: pathlib.Path, step: int) -> None:
    if (checkpoints / str(step)).exists():
        return
    temporary = checkpoints / f"{step}.orbax-checkpoint-tmp"
    temporary.mkdir()
    (temporary / "array").write_text(str(step))
    os.rename(temporary, checkpoints / str(step))
    for old in sorted(int(path.name) for path in checkpoints.iterdir())[:-2]:
        shutil.rmtree(checkpoints / str(old))


if __name__ == "__main__":
    sys.exit(main())
