"""A small recorded engine in virtual time; a step takes as long as its load says. Tests plant one cause at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, LimitsConfig, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.recorder import Recorder, whole_microseconds
from ekiden.ledger.store import LedgerWriter
from ekiden.stages.intake import RulesFactory
from ekiden.state.controls import ControlChange, SetBy, TenantLimits
from ekiden.state.drafting import Drafter
from ekiden.state.plan import BatchPlan, StepOutput
from ekiden.state.request import Request, RequestUpdate
from ekiden.state.sampling_params import SamplingParams
from ekiden.state.sequence import StopText
from tests.unit.evidence.recorded import Kept, header_of

BASE = 0.010
PER_ROW = 0.001
PER_PREFILL_TOKEN = 0.001


class _TimedRunner(FakeRunner):
    """The fake model; a step takes 10 ms, 1 ms for each row and 1 ms for each prompt token."""

    def __init__(self, world: "Directed", **settings: Any) -> None:
        super().__init__(**settings)
        self._world = world

    def execute(self, plan: BatchPlan) -> StepOutput:
        prefill = sum(len(row.token_ids) for row in plan.rows if row.prefill)
        self._world.now += BASE + PER_ROW * len(plan.rows) + PER_PREFILL_TOKEN * prefill
        return super().execute(plan)


class Directed:
    def __init__(
        self,
        *,
        num_blocks: int = 200,
        num_swap_blocks: int = 100,
        prefix_caching: bool = False,
        tenants: dict[str, TenantLimits] | None = None,
        limits: LimitsConfig | None = None,
        make_stop_text: Callable[[Request], StopText | None] = lambda request: None,
        make_rules: RulesFactory | None = None,
        drafter: Drafter | None = None,
        keep_prompts: bool = False,
        **scheduler: Any,
    ) -> None:
        self.now = 0.0
        settings = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "target_itl_ms": 0.0, **scheduler}
        self.config = Config(
            scheduler=SchedulerConfig(**settings),
            cache=CacheConfig(block_size=16, enable_prefix_caching=prefix_caching),
            limits=limits or LimitsConfig(),
            tenants=tenants or {},
        )
        self.runner = _TimedRunner(
            self,
            vocab_size=50,
            num_blocks=num_blocks,
            block_size=16,
            num_swap_blocks=num_swap_blocks,
            max_drafts=0 if drafter is None else 4,
        )
        self.header = header_of(self.config, self.runner, "directed", has_grammars=make_rules is not None)
        self.kept = Kept()
        self.core = EngineCore(
            runner=self.runner,
            controls=controls_of(self.config),
            cache=self.config.cache,
            clock=whole_microseconds(lambda: self.now),
            eos_token_ids=frozenset({0}),
            make_stop_text=make_stop_text,
            make_rules=make_rules,
            drafter=drafter,
            recorder=Recorder(
                self.kept.put,
                clock_base=0,
                block_size=16,
                prefix_caching=prefix_caching,
                keep_prompts=keep_prompts,
                controls=controls_of(self.config),
            ),
        )
        self.updates: list[RequestUpdate] = []
        self._made = 0

    def submit(
        self, name: str, *, prompt: int = 4, output: int = 4, tokens: tuple[int, ...] | None = None, **fields: Any
    ) -> Request:
        """Send a request now. Prompts differ unless ``tokens`` says otherwise; ``deadline`` is seconds from now."""
        self._made += 1
        first = (1 + self._made % 40, 1 + self._made // 40)
        sampling = {"temperature": 0.0, "max_tokens": output, "ignore_eos": True, **fields.pop("sampling", {})}
        deadline = fields.pop("deadline", None)
        request = Request(
            request_id=name,
            prompt_token_ids=(*first, *(7,) * (prompt - 2)) if tokens is None else tokens,
            sampling=SamplingParams(**sampling),
            arrival_time=self.now,
            deadline=None if deadline is None else self.now + deadline,
            **fields,
        )
        self.core.add_request(request)
        return request

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            result = self.core.step()
            self.updates += result.updates
            if not result.computed and result.next_change is not None:
                self.now = max(self.now, result.next_change)

    def run(self) -> None:
        """Step until everything has ended, or only paused sequences are left."""
        self.step()
        while self.core.has_work and not self.core.all_paused:
            self.step()

    def drain(self, who: str) -> None:
        self.core.set_controls(ControlChange(values={"draining": True}, set_by=SetBy.PERSON, who=who))

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def stored(self, folder: Path) -> LedgerReader:
        """Write the run so far to a ledger file and open it."""
        path = folder / "directed.sqlite"
        writer = LedgerWriter(path, self.header)
        for rows in self.kept.turns:
            writer.put(rows)
        writer.close()
        return LedgerReader(path)
