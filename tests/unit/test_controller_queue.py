"""The work queue: each key once, never twice at a time, back-off, the earliest of several pauses."""

import asyncio

from nhx_gym_operator.controller.queue import WorkQueue


async def taken(queue, within=0.2):
    """The next key, or None if none comes."""
    try:
        return await asyncio.wait_for(queue.take(), within)
    except TimeoutError:
        return None


async def test_a_key_added_twice_is_handed_out_once():
    queue = WorkQueue()
    queue.add("a")
    queue.add("a")
    assert await taken(queue) == "a"
    queue.done("a")
    assert await taken(queue, 0.05) is None


async def test_a_key_that_arrives_while_it_is_worked_on_comes_afterwards():
    queue = WorkQueue()
    queue.add("a")
    await queue.take()
    queue.add("a")
    assert await taken(queue, 0.05) is None
    queue.done("a")
    assert await taken(queue) == "a"


async def test_one_slow_key_does_not_hold_up_another():
    queue = WorkQueue()
    queue.add("slow")
    queue.add("fast")
    assert {await queue.take(), await queue.take()} == {"slow", "fast"}


async def test_the_earliest_of_several_pauses_counts():
    queue = WorkQueue()
    queue.add_after("a", 5)
    queue.add_after("a", 0.02)
    queue.add_after("a", 3)
    assert await taken(queue) == "a"


async def test_failures_double_the_pause_up_to_a_limit_and_success_ends_it():
    queue = WorkQueue(base=1, limit=5)
    assert [queue.add_after_failure("a") for _ in range(4)] == [1, 2, 4, 5]
    queue.succeeded("a")
    assert queue.add_after_failure("a") == 1
    queue.forget("a")


async def test_a_forgotten_key_does_not_come_back():
    queue = WorkQueue()
    queue.add_after("a", 0.02)
    queue.forget("a")
    assert await taken(queue, 0.1) is None
