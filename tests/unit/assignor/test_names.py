"""Names that several workers share, and the names that people see instead."""

from dataclasses import replace

from streamsx.assignor.model import MemberMetadata
from streamsx.assignor.names import labels, shared

ALONE = MemberMetadata("m1", "a", "1111111111")


def test_name_used_from_one_directory_is_not_shared() -> None:
    successor = replace(ALONE, id="m2")
    assert (
        shared([ALONE, successor, MemberMetadata("m3", None, ""), MemberMetadata("m4", None, "")])
        == {}
    )


def test_name_used_from_different_directories_is_shared() -> None:
    other = MemberMetadata("m2", "a", "2222222222")
    assert shared([ALONE, other]) == {"a": {ALONE.process, other.process}}


def test_member_labels_add_only_as_much_as_needed_to_be_unique() -> None:
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
