"""Finished rows that are still computed, as in a naive padded batch (`static-padded`). Only this module knows the rule.

Such a row keeps its slot and its blocks until its whole batch has ended. Real work goes before it: it gives up its
blocks when the pool is empty, and its slot when a preempted sequence finds nobody running. When another policy comes
into force, all of them end at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.state.controls import ControlsInForce
from ekiden.state.population import Population
from ekiden.state.sequence import Sequence


@dataclass(slots=True, kw_only=True, eq=False)
class PaddingRows:
    population: Population
    kv: KVCacheManager
    controls: ControlsInForce

    @property
    def _kept(self) -> bool:
        return self.controls.now.batching == "static-padded"

    def __iter__(self) -> Iterator[Sequence]:
        """The rows that can still be computed, because they have their blocks."""
        return (sequence for sequence in self.population.padding if sequence.block_table)

    def take(self, finished: Sequence) -> bool:
        """Keep the row of a sequence that has just ended; False where the policy in force keeps none.

        One that has computed all its tokens and made none has no token that could be computed again: the last one of
        its prompt may lie in a block that others share.
        """
        if not self._kept or finished.num_computed_tokens == finished.num_prompt_tokens == len(finished.token_ids):
            return False
        finished.padding = True
        last = len(finished.block_table) * self.kv.block_size - 1
        finished.num_computed_tokens = min(finished.num_computed_tokens, last)
        self.population.padding.append(finished)
        return True

    def give_up_blocks(self) -> bool:
        """Release the blocks of one row; False when there is none with blocks."""
        row = next(iter(self), None)
        if row is not None:
            self.kv.release(row)
        return row is not None

    def end_with_batch(self) -> None:
        """End all rows when their batch has ended, or when the policy in force keeps none."""
        population = self.population
        if population.padding and not (self._kept and (population.running or population.preempted)):
            self.end()

    def end(self) -> None:
        for row in self.population.padding:
            self.kv.release(row)
            self.population.free_slot(row)
        self.population.padding.clear()
