"""Names that are not one worker's, and what to call each of those who have one."""

from streamsx.assignor.names import Bearer, labels, shared

ALONE = Bearer("m1", "a", "1111111111")


def test_a_name_of_one_directory_is_nobody_elses() -> None:
    successor = ALONE._replace(member="m2")
    assert shared([ALONE, successor, Bearer("m3", None, ""), Bearer("m4", None, "")]) == {}


def test_a_name_of_two_directories_is_shared() -> None:
    other = Bearer("m2", "a", "2222222222")
    assert shared([ALONE, other]) == {"a": {ALONE.process, other.process}}


def test_each_is_called_by_its_name_and_by_as_much_more_as_it_takes() -> None:
    bearers = [
        ALONE,
        Bearer("m2", "a", "2222222222"),
        Bearer("m3", "b", "3333333333"),
        Bearer("m4", "b", "3333333333"),
        Bearer("m5", "c", "5555555555"),
        Bearer("m6", None, ""),
    ]
    assert labels(bearers) == {
        "m1": "a@11111111", "m2": "a@22222222", "m3": "b@m3", "m4": "b@m4", "m5": "c", "m6": "m6",
    }  # fmt: skip
