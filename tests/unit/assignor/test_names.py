"""Names that are not one worker's, and what to call each of those who have one."""

from dataclasses import replace

from streamsx.assignor.model import MemberMetadata
from streamsx.assignor.names import labels, shared

ALONE = MemberMetadata("m1", "a", "1111111111")


def test_a_name_of_one_directory_is_nobody_elses() -> None:
    successor = replace(ALONE, id="m2")
    assert (
        shared([ALONE, successor, MemberMetadata("m3", None, ""), MemberMetadata("m4", None, "")])
        == {}
    )


def test_a_name_of_two_directories_is_shared() -> None:
    other = MemberMetadata("m2", "a", "2222222222")
    assert shared([ALONE, other]) == {"a": {ALONE.process, other.process}}


def test_each_is_called_by_its_name_and_by_as_much_more_as_it_takes() -> None:
    members = [
        ALONE,
        MemberMetadata("m2", "a", "2222222222"),
        MemberMetadata("m3", "b", "3333333333"),
        MemberMetadata("m4", "b", "3333333333"),
        MemberMetadata("m5", "c", "5555555555"),
        MemberMetadata("m6", None, ""),
    ]
    assert labels(members) == {
        "m1": "a@11111111", "m2": "a@22222222", "m3": "b@m3", "m4": "b@m4", "m5": "c", "m6": "m6",
    }  # fmt: skip
