"""The page of ``ekiden top``: a view drawn into as many lines and columns as there are.

Slots get a line each while these fit. Beyond that they become cells of a grid, as wide as there is room for, so that 64
slots are as quick to read in a small terminal as 4 are. Nothing wraps; what is too long is cut with an ellipsis.
"""

from collections.abc import Iterable
from textwrap import wrap

from rich.text import Text

from ekiden.evidence.live_view import Control, LiveView, Slot, SlotState, Spread, Tenant
from ekiden.evidence.words import seconds

_STYLES = {
    SlotState.EMPTY: ("·", "dim"),
    SlotState.PREFILL: ("p", "cyan"),
    SlotState.DECODE: ("d", "green"),
    SlotState.RECOMPUTE: ("r", "yellow"),
    SlotState.PREEMPTED: ("x", "red"),
    SlotState.PADDING: ("~", "dim"),
}
_CELLS = (20, 10, 5, 1)
"""Widths of a cell, the gap to the next one included, from the most telling to the smallest."""
_PLAIN_HEIGHT = 40
"""Lines of a page that no terminal bounds: enough for everything that is listed."""
_FEW = 8
"""So many slots get a line each on a page that no terminal bounds."""
_HELP = "d decode p prompt r recompute x preempted ~ padding · free ! left out"


def page(view: LiveView, *, width: int, height: int | None = None, keys: str = "") -> list[Text]:
    """The lines of one page, none wider than ``width``, and at most ``height`` of them where it is at least 20."""
    head = _head(view)
    rules, ends = _controls(view, width, 2 if height else 8), _ends(view)
    foot = [ends, *rules, *([Text(keys, "dim")] if keys else [])]
    room = (height or _PLAIN_HEIGHT) - len(head) - len(foot)
    queue_wanted, tenants_wanted = 1 + len(view.queue.first) + len(view.away), 1 + len(_all_tenants(view))
    spare = min(3, queue_wanted) + min(4, tenants_wanted)
    slots = _slots(view, width, room - spare, lines_upto=None if height else _FEW)
    room -= len(slots)
    tenants = _tenants(view, max(min(4, tenants_wanted), room - queue_wanted))
    queue = _queue(view, width, room - len(tenants))
    lines = [*head, *slots, *queue, *tenants, *foot]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return lines if height is None else lines[:height]


def printable(text: str) -> str:
    """Without what a terminal could take for a command."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _cut(text: str, width: int) -> str:
    text = printable(text)
    return text if len(text) <= width else text[: width - 1] + "…"


# --- above


def _head(view: LiveView) -> list[Text]:
    memory, queue = view.memory, view.queue
    first = Text.assemble(("ekiden top", "bold"), f"  run {printable(view.run_id)}  ")
    if view.recording:
        first.append(f"turn {view.turn:,}, {seconds(view.age_seconds)} ago")
    else:
        first.append(f"ended, turn {view.turn:,}", "bold red")
    if not view.exact:
        first.append("  inexact: turns were lost", "bold red")
    first.append(f"  lineage {view.lineage[:8]}  {printable(view.model)}", "dim")
    share = memory.used / memory.total if memory.total else 0.0
    full = round(10 * min(share, 1.0))
    state = Text.assemble(
        (f"{view.running}/{len(view.slots)} running", "green"),
        f", {queue.waiting} waiting, {view.paused} paused, {memory.preempted} preempted  KV ",
        ("█" * full + "░" * (10 - full), "red" if share > 0.95 else "cyan"),
        f" {memory.used:,}/{memory.total:,}",
    )
    if memory.moved or memory.preempted_blocks:
        state.append(f", {memory.preempted_blocks} swapped, {memory.moved} moved")
    pace = view.pace
    speed = Text(
        f"last {view.window_seconds:.3g} s: {pace.output_tokens_per_second:,.1f} tok/s out, "
        f"{pace.prompt_tokens_per_second:,.1f} tok/s of prompts, {pace.steps:,} steps of {pace.rows_per_step:.1f} rows"
    )
    if pace.drafts:
        speed.append(f", {pace.accepted_drafts:,} of {pace.drafts:,} drafts right")
    step = ("step", "bold"), f" {'-' if pace.step.p50 is None else seconds(pace.step.p50)}", ("  (p50/p95/p99)", "dim")
    times = Text.assemble(*_spread("TTFT", pace.ttft), "   ", *_spread("ITL", pace.itl), "   ", *step)
    return [first, state, speed, times]


def _spread(name: str, spread: Spread) -> list[str | tuple[str, str]]:
    """p50, p95 and p99, in one unit, so that they are compared at a glance."""
    values = [value for value in (spread.p50, spread.p95, spread.p99) if value is not None]
    if not values:
        return [(name, "bold"), " -"]
    scale, unit = (1000.0, "ms") if max(values) < 1.0 else (1.0, "s")
    return [(name, "bold"), f" {'/'.join(f'{value * scale:.3g}' for value in values)} {unit}"]


# --- slots


def _slots(view: LiveView, width: int, room: int, *, lines_upto: int | None) -> list[Text]:
    title = Text("slots", "bold")
    slots = view.slots
    if len(slots) < room and (lines_upto is None or len(slots) <= lines_upto):
        return [title, *(_slot_line(slot, width) for slot in slots)]
    title.append(f"  {_HELP}", "not bold dim")
    cell = next((w for w in _CELLS if -(-len(slots) // max(1, width // w)) < room), _CELLS[-1])
    in_row = max(1, width // cell)
    rows = [slots[start : start + in_row] for start in range(0, len(slots), in_row)]
    lines = [Text.assemble(*(_cell(slot, cell) for slot in row)) for row in rows]
    if len(lines) >= room > 1:
        left = len(slots) - in_row * (room - 2)
        lines = [*lines[: room - 2], Text(f"and {left} more slots (--json shows them)", "dim")]
    return [title, *lines]


def _slot_line(slot: Slot, width: int) -> Text:
    sign, style = _STYLES[slot.state]
    if slot.request_id is None:
        return Text.assemble(f"{slot.slot:>4} ", (f"{sign} {slot.state.value}", style))
    name, tenant = (34, 12) if width >= 110 else (10, 8)
    prompt = f"prompt {slot.computed_tokens:,}/{slot.prompt_tokens:,}"
    line = Text.assemble(
        f"{slot.slot:>4} ",
        (f"{'!' if slot.left_out else sign} {slot.state.value:<11}", style),
        f" {_cut(slot.request_id, name):<{name}} {_cut(slot.tenant or '', tenant):<{tenant}}",
    )
    if slot.state is not SlotState.PADDING:
        line.append(f" {prompt:<16} out {slot.output_tokens:>4}/{slot.max_tokens:<5} {seconds(slot.seconds):>7}")
    if slot.left_out:
        line.append(f" left out: {slot.left_out}", "yellow")
    return line


def _cell(slot: Slot, width: int) -> tuple[str, str]:
    """The sign, then how far it is: the prompt in percent, or the tokens made; then whose it is."""
    sign, style = _STYLES[slot.state]
    if width == 1 or slot.state in (SlotState.EMPTY, SlotState.PADDING):
        return f"{sign:<{width}}", style
    sign = "!" if slot.left_out else sign
    made = slot.output_tokens
    done = str(made) if made < 1000 else f"{min(99, made // 1000)}k"
    if slot.state is SlotState.PREFILL:
        done = f"{min(99, 100 * slot.computed_tokens // max(1, slot.prompt_tokens))}%"
    text = f"{sign}{done:>3}"
    if width > len(text) + 2:
        text += f" {_cut(slot.tenant or '', width - len(text) - 2)}"
    return f"{text:<{width}}", style


# --- the queue


def _queue(view: LiveView, width: int, room: int) -> list[Text]:
    queue, title = view.queue, "  empty"
    if queue.waiting:
        oldest = seconds(queue.oldest_seconds or 0.0)
        title = f"  {queue.waiting} ({_counts(queue.by_cause)}), oldest {oldest}, {queue.prompt_tokens:,} prompt tokens"
    lines = [Text.assemble(("queue", "bold"), title)]
    name = 34 if width >= 110 else 13
    for place, one in enumerate(queue.first, 1):
        text = f"{place:>4} {_cut(one.request_id, name):<{name}} {_cut(one.tenant, 10):<10} "
        text += f"{one.prompt_tokens:>6,} tokens {seconds(one.seconds):>7}  {one.cause.replace('_', ' ')}"
        line = Text(text)
        if one.behind:
            line.append(f" {_cut(one.behind, name)}")
        if one.passed_over:
            line.append("  passed over", "yellow")
        lines.append(line)
    for away in view.away:
        held = f"paused: {', '.join(away.why)}" if away.why else "waits to come back"
        who = f"   - {_cut(away.request_id, name):<{name}} {_cut(away.tenant, 10):<10} "
        lines.append(Text.assemble(who, (f"{away.output_tokens:>6,} tokens made  {held}".replace("_", " "), "magenta")))
    return lines[: max(1, room)]


# --- tenants, ends, controls


def _all_tenants(view: LiveView) -> list[Tenant]:
    return view.tenants if view.other_tenants is None else [*view.tenants, view.other_tenants]


def _tenants(view: LiveView, room: int) -> list[Text]:
    told = _all_tenants(view)
    if len(told) > room - 1 > 0:  # the last line is for the rest
        rest = told[room - 2 :]  # the last of them may itself stand for others; then there is no counting them
        name = "others" if rest[-1].tenant.endswith(" others") else None
        told = [*told[: room - 2], Tenant.sum_of(rest, name)]
    total = max(1, view.pace.output_tokens + view.pace.prompt_tokens)
    title = f"{'tenants':<17}{'weight':>6}{'run':>5}{'wait':>6}{'away':>5}{'out':>9}{'prompt':>9}{'share':>7}"
    lines = [Text(f"{title}{'ended':>7}{'refused':>9}", "bold")]
    for one in told:
        share = (one.output_tokens + one.prompt_tokens) / total
        text = f"{_cut(one.tenant, 16):<17}{one.weight:>6g}{one.running:>5}{one.waiting:>6}{one.away:>5}"
        text += f"{one.output_tokens:>9,}{one.prompt_tokens:>9,}{share:>7.0%}{one.ended:>7}{one.refused:>9}"
        lines.append(Text(text))
    return lines


def _ends(view: LiveView) -> Text:
    line = Text.assemble(("ended", "bold"), f"  {_counts(view.ended)}   ")
    style = "red" if view.refused else ""
    return line.append_text(Text.assemble(("refused", "bold"), (f"  {_counts(view.refused)}", style)))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()) or "none"


def _controls(view: LiveView, width: int, most: int) -> list[Text]:
    """What people and rules put in force, on a line of their own; then the configuration, on at most ``most``."""
    set_now = [control for control in view.controls if control.set_by != "configuration"]
    configured = [control for control in view.controls if control.set_by == "configuration"]
    lines = []
    if set_now:
        lines.append(Text.assemble(("set", "bold"), f"  {_joined(map(_set, set_now))}", style="magenta"))
    rest = _joined(f"{c.name}={c.value}" for c in configured if c.value != "None")
    name = "rules  "
    wrapped = wrap(rest, max(1, width - len(name)), break_long_words=False, break_on_hyphens=False)
    for text in filter(None, (*wrapped[: most - 1], " ".join(wrapped[most - 1 :]))):
        lines.append(Text.assemble((name, "bold"), text.rstrip(","), style="dim"))
        name = " " * len(name)
    return lines


def _set(control: Control) -> str:
    left = control.expires_in_seconds
    until = "" if left is None else f", for {seconds(left)} more"
    by = f"by {control.who or control.set_by} {seconds(control.seconds)} ago"
    return f"{_cut(control.name, 46)}={control.value} {by}{until}"


def _joined(parts: Iterable[str]) -> str:
    return printable(", ".join(parts))
