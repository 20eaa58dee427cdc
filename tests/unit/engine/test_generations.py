"""A server's counters are the sums over all its engines; its gauges are those of the living one."""

import msgspec

from ekiden.engine.generations import Generations, combined
from ekiden.engine.interface import EngineStats, TenantTotals
from ekiden.engine.recovery import InFlight
from ekiden.engine.totals import Totals
from ekiden.state.request import FinishReason, Refusal, RefusalReason, RequestUpdate
from tests.unit.engine.fake_parts import make_request


def ended(name: str, tokens: int, *, tenant: str = "acme", at: float = 3.0) -> tuple[InFlight, RequestUpdate]:
    request = msgspec.structs.replace(make_request(name, max_tokens=50), tenant=tenant, arrival_time=1.0)
    flight = InFlight(request, token_ids=[0] * tokens)
    return flight, RequestUpdate(name, (0,), flight.finish(FinishReason.STOP, at))


def snapshot(*updates: RequestUpdate, running: int = 0) -> EngineStats:
    totals = Totals(["acme"])
    totals.count_ends(list(updates))
    totals.counters.generation_tokens_total += sum(
        update.finish.num_output_tokens for update in updates if update.finish
    )
    return msgspec.structs.replace(totals.sums(), num_running=running, kv_blocks_used=running, kv_blocks_total=9)


def test_what_came_after_the_last_report_of_a_dead_engine_is_counted_as_clients_saw_it() -> None:
    counted = Generations({"acme": None})
    _, before = ended("before", 7)
    counted.report(snapshot(before, running=3))
    assert counted.stats().num_running == 3
    flight, after = ended("after", 5, at=4.0)
    counted.saw(6)
    counted.saw_end(flight.request, after)
    refusal = Refusal(reason=RefusalReason.PROMPT_EMPTY, message="")
    counted.saw_end(flight.request, RequestUpdate("refused", refusal=refusal))
    assert counted.stats().finished_total == {"stop": 1}, "the engine counts it with its next report"
    counted.engine_ended()
    stats = counted.stats()
    assert stats.generation_tokens_total == 7 + 6
    assert stats.finished_total == {"stop": 2}
    assert stats.refused_total == {"prompt_empty": 1}
    assert stats.tenants["acme"] == TenantTotals(2, 1, 2 * 3, 7 + 5)
    assert (stats.latencies[1].total, sum(stats.latencies[1].counts)) == (2.0 + 3.0, 2)
    assert (stats.num_running, stats.kv_blocks_used) == (0, 0)


def test_a_report_covers_all_that_was_seen_before_it() -> None:
    counted = Generations({})
    flight, update = ended("r", 7)
    counted.saw(7)
    counted.saw_end(flight.request, update)
    counted.report(snapshot(update))
    counted.engine_ended()
    assert counted.stats().generation_tokens_total == 7
    assert counted.stats().finished_total == {"stop": 1}


def test_counters_are_sums_over_engines_and_gauges_of_the_newest() -> None:
    counted = Generations({"acme": None})
    for running in (3, 2):
        counted.report(snapshot(ended("r", 4)[1], running=running))
        counted.engine_ended()
    counted.report(snapshot(ended("r", 4)[1], running=1))
    stats = counted.stats()
    assert (stats.generation_tokens_total, stats.num_running, stats.kv_blocks_total) == (12, 1, 9)
    assert stats.finished_total == {"stop": 3}
    assert stats.tenants["acme"].requests == 3


def test_every_total_of_the_snapshot_is_added_up() -> None:
    def filled(number: int) -> EngineStats:
        kinds = {"int": number, "float": float(number), "dict": {"x": number}}
        values = {
            field.name: kinds.get(getattr(field.type, "__name__", "dict"), {"x": number})
            for field in msgspec.structs.fields(EngineStats)
            if field.name.endswith("_total")
        }
        return EngineStats(**values)  # type: ignore[arg-type]

    both = msgspec.structs.asdict(combined(filled(1), filled(2)))
    of_the_newest = {"kv_blocks_total"}
    for name, value in both.items():
        if name.endswith("_total"):
            number = value["x"] if isinstance(value, dict) else value
            assert number == (2 if name in of_the_newest else 3), name
