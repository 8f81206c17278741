"""Trajectory: what is written is read back, and a damaged line is refused by file and number."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.rollout import trajectory
from agentrl.rollout.trajectory import Key, RecordError, Segment, Trajectory
from agentrl.tasks.environment import Call, Outcome

RECORD = Trajectory(
    Key("pilot/seed-42", 3, "train", "train-0001", 1, 42),
    [
        Segment("prompt", [1, 2, 3]),
        Segment("sampled", [4, 5], [-0.5, -1e-6], "stop"),
        Segment("framing", [6]),
        Segment("observation", [7, 8]),
        Segment("framing", [9]),
        Segment("sampled", [10], [-2.25], "length"),
    ],
    [
        Call(0, "lookup", {"record_id": "ÄÖ\u2028\x85"}, "x\ny", None, True),
        Call(1, None, None, "Fehler", "invalid_json", False),
    ],
    Outcome(True, False, False, None, False, False, 1, "token_cap"),
    "transformers",
)


def write(path: Path, *records: Trajectory) -> Path:
    with open(path, "a", encoding="utf-8") as stream:
        trajectory.append(stream, records)
    return path


def test_training_draws_anew_at_every_step_and_evaluation_at_none() -> None:
    trained = Key("pilot/seed-42", 3, "train", "train-0001", 1, 42)
    assert trained.stream(2) == ("episode", 42, 3, "train-0001", 1, 2)
    assert trained.stream(2) != replace(trained, step=4).stream(2)
    for split in ("dev", "test"):
        start, candidate = (
            Key("baseline", 0, split, f"{split}-0001", 1, 42),
            Key("pilot/seed-42", 32, split, f"{split}-0001", 1, 42),
        )
        assert start.stream(2) == candidate.stream(2) == ("evaluation", 42, f"{split}-0001", 1, 2)
        others = [
            replace(start, trial=0).stream(2),
            replace(start, task="x").stream(2),
            replace(start, seed=1).stream(2),
            start.stream(1),
        ]
        assert len({start.stream(2), *others}) == 5


def test_views_follow_the_segments() -> None:
    assert RECORD.prompt_ids == [1, 2, 3]
    assert RECORD.completion_ids == [4, 5, 6, 7, 8, 9, 10]
    assert RECORD.loss_mask == [1, 1, 0, 0, 0, 0, 1]
    assert [segment.ids for segment in RECORD.sampled] == [[4, 5], [10]]


def test_round_trip_and_appending(tmp_path: Path) -> None:
    trained = replace(RECORD, reward=0.15, advantage=-0.7071)
    path = write(tmp_path / "t.jsonl", RECORD, trained)
    write(path, RECORD)
    assert list(trajectory.read(path)) == [RECORD, trained, RECORD]
    assert path.read_bytes() == path.read_bytes().decode("ascii").encode()


def test_same_record_same_bytes_and_no_empty_fields(tmp_path: Path) -> None:
    one, two = (
        write(tmp_path / "a", RECORD),
        write(tmp_path / "b", Trajectory.from_json(RECORD.to_json())),
    )
    assert one.read_bytes() == two.read_bytes()
    data = json.loads(one.read_text())
    assert data["version"] == trajectory.VERSION == 2
    assert "reward" not in data
    assert "logprobs" not in data["segments"][0]


def test_empty_file_has_no_records(tmp_path: Path) -> None:
    assert list(trajectory.read(write(tmp_path / "t.jsonl"))) == []


LINE = json.dumps(RECORD.to_json())


def changed(**fields: object) -> bytes:
    return (json.dumps(RECORD.to_json() | fields) + "\n").encode()


@pytest.mark.parametrize(
    ("second", "defect"),
    [
        (LINE[:-30].encode(), "truncated"),
        (LINE.encode(), "truncated"),
        (b"\n", "Expecting value"),
        (b"garbage\n", "Expecting value"),
        (b"\xff\xfe\x00\n", "UnicodeDecodeError"),
        (b"[" * 100_000 + b"\n", "recursion"),
        (b"[]\n", "TypeError"),
        (b"3\n", "TypeError"),
        (b"{}\n", "version"),
        (changed(version=1), "record version 1, this code reads version 2"),
        (changed(speed=1), "speed"),
        (changed(segments=[{"kind": "prompt", "ids": [1], "color": 1}]), "color"),
        (changed(key={"policy": "baseline"}), "missing"),
        (changed(outcome=RECORD.to_json()["outcome"] | {"luck": 1}), "luck"),
        (changed(calls=[{"turn": 0}]), "missing"),
        (changed(segments=3), "TypeError"),
    ],
)
def test_damage_is_named_by_file_and_line(tmp_path: Path, second: bytes, defect: str) -> None:
    path = write(tmp_path / "t.jsonl", RECORD)
    path.write_bytes(path.read_bytes() + second)
    records = trajectory.read(path)
    assert next(records) == RECORD
    with pytest.raises(RecordError, match=rf"{path}, line 2: .*{defect}"):
        next(records)


def test_an_error_of_the_reader_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    records = trajectory.read(write(tmp_path / "t.jsonl", RECORD))
    next(records)
    with pytest.raises(ValueError, match="mine") as caught:
        records.throw(ValueError("mine"))
    assert not isinstance(caught.value, RecordError)
