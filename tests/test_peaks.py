import pytest

from identity_matters.training.peaks import peak_flops_per_second


@pytest.mark.parametrize(
    ("device_kind", "bfloat16", "float32"),
    [
        ("NVIDIA H200", 989.5e12, 494.7e12),
        ("NVIDIA H100 80GB HBM3", 989.5e12, 494.7e12),
        ("NVIDIA H100 PCIe", 756e12, 378e12),
        ("NVIDIA A100-SXM4-40GB", 312e12, 156e12),
        ("Tesla V100-SXM2-16GB", None, 15.7e12),
        ("Tesla T4", None, 8.1e12),
        ("NVIDIA L4", 121e12, 60.5e12),
        ("TPU v2", 22.5e12, 22.5e12),
        ("TPU v4", 275e12, 275e12),
        ("TPU v5 lite", 197e12, 197e12),
        ("TPU v5p", 459e12, 459e12),
        ("TPU v6 lite", 918e12, 918e12),
        # Not in the table, though its name begins like one that is.
        ("NVIDIA L40S", None, None),
        ("cpu", None, None),
    ],
)
def test_peaks_by_name(device_kind, bfloat16, float32):
    assert peak_flops_per_second(device_kind, "bfloat16") == bfloat16
    assert peak_flops_per_second(device_kind, "float32") == float32


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="must be bfloat16 or float32, got 'float16'"):
        peak_flops_per_second("NVIDIA H200", "float16")
