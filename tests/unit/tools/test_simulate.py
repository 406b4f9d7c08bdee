"""`streamsx simulate seeds` and `story`; `scale` has its own tests beside what it plays."""

import json

import pytest

from streamsx.tools import simulate


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["streamsx", *words])
    with pytest.raises(SystemExit) as exit_:
        simulate.main()
    return exit_.value.code


def test_seeds_are_reported_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "seeds", "--from", "6", "--count", "1", "--world", "--json") == 0
    out, error = capsys.readouterr()
    told = json.loads(out)
    assert (told["seeds"], told["virtual_s"], told["failures"]) == (1, 93.0, [])
    assert told["events"] > 1000
    assert "0 fail" in error


def test_story_prints_a_line_per_event(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "story", "6", "--last", "3") == 0
    *lines, end = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert [float(line.split()[0]) for line in lines] == sorted(
        float(line.split()[0]) for line in lines
    )
    assert end.endswith("faults: holds")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no command: there are scale, seeds, story: streamsx simulate: --help"),
        (("seed",), "no such command: seed: did you mean seeds?"),
        (("seeds", "--count", "0"), "--count"),
        (("seeds", "a"), "unrecognized arguments: a: streamsx simulate seeds: --help"),
        (("--bogus",), "--bogus ahead of a command: there are scale, seeds, story"),
        (("story",), "seed"),
        (
            ("scale", "--tasks=5", "--workers=1", "--add=1", "--restore-seconds=infinite"),
            "argument --restore-seconds: 'infinite': a task is restored within 365d",
        ),
    ],
)
def test_simulate_refuses_bad_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...],
    says: str,
) -> None:  # fmt: skip
    assert run(monkeypatch, *words) == 2
    assert says in capsys.readouterr().err
