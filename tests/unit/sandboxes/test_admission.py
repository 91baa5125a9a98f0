"""Who gets boxes, in virtual time: order, fairness, groups, and no starvation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.core.errors import ResourceExhausted, UserError
from trialyard.sandboxes.admission import Admission, Claim, Ticket


def admitted(admission: Admission, now_s: float = 0.0) -> list[Ticket]:
    found = []
    while (ticket := admission.admit(now_s)) is not None:
        found.append(ticket)
    return found


def owners(tickets: list[Ticket]) -> list[str]:
    return [ticket.claim.owner for ticket in tickets]


def one_at_a_time(admission: Admission, now_s: float = 0.0) -> list[str]:
    """The order in which owners are served when one leaves before the next comes in."""
    served = []
    while (ticket := admission.admit(now_s)) is not None:
        served.append(ticket.claim.owner)
        admission.release(ticket.claim)
    return served


def test_bigger_priority_first_then_first_come() -> None:
    admission = Admission(1)
    for number, priority in enumerate((0, 5, -1, 5, 0)):
        admission.enqueue(Claim(str(number), priority=priority), 0.0)
    assert one_at_a_time(admission) == ["1", "3", "0", "4", "2"]


def test_among_equals_who_has_the_fewest_boxes_goes_first() -> None:
    admission = Admission(6)
    for _ in range(5):
        admission.enqueue(Claim("greedy"), 0.0)
    assert owners(admitted(admission)) == ["greedy"] * 5
    for owner in ("greedy", "greedy", "modest", "modest", "late"):
        admission.enqueue(Claim(owner), 1.0)
    assert owners(admitted(admission, 1.0)) == ["modest"]
    for _ in range(3):
        admission.release(Claim("greedy"))
    # late has none, then modest 1 against greedy 2
    assert owners(admitted(admission, 1.0)) == ["late", "modest", "greedy"]


def test_a_group_is_admitted_whole_and_is_not_overtaken_by_what_would_fit() -> None:
    admission = Admission(4)
    for _ in range(3):
        admission.enqueue(Claim("a"), 0.0)
    admitted(admission)
    group = admission.enqueue(Claim("group", count=3), 1.0)
    admission.enqueue(Claim("small"), 2.0)
    assert admitted(admission, 2.0) == []
    admission.release(Claim("a"))
    assert admitted(admission, 2.0) == []
    admission.release(Claim("a"))
    assert admitted(admission, 2.0) == [group]
    admission.release(Claim("a"))
    assert owners(admitted(admission, 2.0)) == ["small"]
    assert admission.boxes == 4


def test_a_withdrawn_group_lets_those_behind_it_in() -> None:
    admission = Admission(2)
    admission.enqueue(Claim("a"), 0.0)
    admitted(admission)
    group = admission.enqueue(Claim("group", count=2), 1.0)
    admission.enqueue(Claim("small"), 2.0)
    assert admitted(admission, 2.0) == []
    admission.withdraw(group)
    admission.withdraw(group)
    assert owners(admitted(admission, 2.0)) == ["small"]
    assert len(admission) == 0


def test_waiting_makes_important_so_nothing_starves() -> None:
    admission = Admission(1, aging_s=10.0)
    admission.enqueue(Claim("patient", priority=0), 0.0)
    served_at_s = None
    for second in range(200):
        admission.enqueue(Claim(f"new-{second}", priority=3), float(second))
        [ticket] = admitted(admission, float(second))
        admission.release(ticket.claim)
        if ticket.claim.owner == "patient":
            served_at_s = second
            break
    assert served_at_s is not None
    assert 30 <= served_at_s <= 50


def test_fair_share_alone_starves_nobody_either() -> None:
    """Fresh owners keep coming; the owner with many boxes gets its turn by age."""
    admission = Admission(3, aging_s=10.0)
    admission.enqueue(Claim("big", count=2), 0.0)
    admitted(admission)
    admission.enqueue(Claim("big"), 0.0)
    for second in range(100):
        admission.enqueue(Claim(f"new-{second}"), float(second))
        [ticket] = admitted(admission, float(second))
        if ticket.claim.owner == "big":
            break
        admission.release(ticket.claim)
    assert 10 <= second <= 25


def test_memory_is_a_second_room() -> None:
    admission = Admission(10, max_memory_bytes=100)
    for owner in "abc":
        admission.enqueue(Claim(owner, memory_bytes=40), 0.0)
    assert owners(admitted(admission)) == ["a", "b"]
    assert admission.memory_bytes == 80
    admission.release(Claim("a", memory_bytes=40))
    assert owners(admitted(admission)) == ["c"]


def test_what_can_never_be_is_refused_at_once_by_name() -> None:
    admission = Admission(4, max_memory_bytes=100)
    with pytest.raises(UserError, match=r"count 5.*max_boxes"):
        admission.enqueue(Claim("a", count=5), 0.0)
    with pytest.raises(UserError, match="count 0"):
        admission.enqueue(Claim("a", count=0), 0.0)
    with pytest.raises(ResourceExhausted, match=r"memory_bytes 101.*max_memory_bytes"):
        admission.enqueue(Claim("a", memory_bytes=101), 0.0)
    assert len(admission) == 0


CLAIMS = st.builds(
    Claim,
    owner=st.sampled_from("abc"),
    count=st.integers(1, 4),
    memory_bytes=st.integers(0, 50),
    priority=st.integers(-2, 2),
)


@given(st.lists(st.tuples(CLAIMS, st.integers(0, 3), st.floats(0, 20)), max_size=40))
def test_room_is_never_exceeded_and_everybody_is_served(
    steps: list[tuple[Claim, int, float]],
) -> None:
    """Claims come; now and then one waiter leaves or one holder gives back."""
    admission = Admission(4, max_memory_bytes=50)
    now_s, waiting, holding = 0.0, set[Ticket](), list[Claim]()

    def let_in() -> None:
        for ticket in admitted(admission, now_s):
            waiting.remove(ticket)
            holding.append(ticket.claim)
        assert admission.boxes == sum(claim.count for claim in holding) <= 4
        assert admission.memory_bytes == sum(claim.memory_bytes for claim in holding) <= 50
        assert len(admission) == len(waiting)
        for owner in "abc":
            assert admission.boxes_of(owner) == sum(
                claim.count for claim in holding if claim.owner == owner
            )

    for claim, action, pause_s in steps:
        now_s += pause_s
        waiting.add(admission.enqueue(claim, now_s))
        if action == 1 and holding:
            admission.release(holding.pop(0))
        elif action == 2:
            leaver = min(waiting, key=lambda ticket: ticket.number)
            waiting.remove(leaver)
            admission.withdraw(leaver)
        let_in()
    while holding:
        admission.release(holding.pop(0))
        let_in()
    assert not waiting
