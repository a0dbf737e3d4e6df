"""The run at ImageNet's size, on a few points: it goes on where it was interrupted."""

import json

from benchmarks import memorize_at_scale


def test_an_interrupted_run_goes_on_with_the_next_batch(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memorize_at_scale, "BATCH_EXAMPLES", 20)
    monkeypatch.setattr(memorize_at_scale, "NUM_CLASSES", 5)
    memorize_at_scale.main(str(tmp_path), ["50"])
    batches = tmp_path / "batches_50.jsonl"
    lines = batches.read_text(encoding="ascii").splitlines()
    assert [json.loads(line)["examples"] for line in lines] == [20, 20, 10]
    batches.write_text("\n".join(lines[:1]) + "\n", encoding="ascii")
    built = (tmp_path / "built.jsonl").read_text(encoding="ascii")
    memorize_at_scale.main(str(tmp_path), ["50"])
    again = [
        json.loads(line)["start"] for line in batches.read_text("ascii").splitlines()
    ]
    assert again == [0, 20, 40]
    assert (tmp_path / "built.jsonl").read_text(encoding="ascii") == built
    assert json.loads(built)["certificate"]["holds"]
    assert "n = 50: 0 errors on 50 points" in capsys.readouterr().out
