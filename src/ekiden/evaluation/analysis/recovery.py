"""What can be done when it goes wrong, with the tests that show it."""

from collections import Counter
from typing import Final, NamedTuple

from ekiden.evaluation.analysis.told_figures import Told, Words, both


class Shown(NamedTuple):
    """A way to recover and the tests that show it, as ``file::test`` from the root of the source."""

    words: Words
    tests: tuple[str, ...]


SHOWN: Final = (
    Shown(
        both(
            "Refuse: past its limits the engine refuses at once with a reason and a time after which to retry, and at "
            "five times the load keeps nine tenths of its good answers",
            "拒否：上限を超えると、理由と再試行までの時間を添えて直ちに断る。5 倍の負荷でも、期限内の応答の 9 割を保つ",
        ),
        (
            "tests/unit/engine/test_overload.py::test_five_times_the_load_keeps_nine_tenths_of_the_good_answers",
            "tests/api/test_refusals.py::test_retry_after_is_what_the_refusal_says",
        ),
    ),
    Shown(
        both(
            "Fall back: a fault in one request ends that request alone, and its neighbours go on",
            "縮退：ある要求の処理に異常が起きても、終わるのはその要求だけで、ほかの要求は続く",
        ),
        (
            "tests/backends/test_containment.py::test_a_pass_that_fails_for_one_row",
            "tests/unit/sampling/test_containment.py::test_a_row_that_raises_fails_alone_and_the_others_are_as_ever",
        ),
    ),
    Shown(
        both(
            "Go back: POST /admin/policy sets batching, order and limits of the running server, with a reason and an "
            "end after which the configured ones return; the tokens are the same under every policy",
            "差し戻し：POST /admin/policy で、稼働中のサーバーのバッチ方式、順序、上限を、"
            "理由と期限を付けて変更できる。期限が過ぎれば元の設定に戻る。どの方式でもトークンは変わらない",
        ),
        (
            "tests/api/test_admin.py::test_a_policy_is_changed_with_a_reason_and_an_end",
            "tests/unit/engine/test_engines.py::test_controls_change_at_a_boundary_and_back_when_the_time_is_up",
            "tests/endtoend/test_same_tokens.py::test_together_under_every_batching_policy",
        ),
    ),
    Shown(
        both(
            "Hand over: a draining server refuses newcomers and ends what it has; after an engine's end another takes "
            "over its requests, and clients get the answers of an undisturbed run",
            "引き継ぎ：停止の準備（drain）に入ると新しい要求を断り、処理中の要求を終えられる。エンジンが落ちても次のエンジンが"
            "要求を引き継ぎ、クライアントには障害がなかった場合と同じ応答が届く",
        ),
        (
            "tests/api/test_admin.py::test_drain_closes_the_door_and_opens_it",
            "tests/endtoend/test_engine_ends.py::test_clients_get_the_answers_of_an_undisturbed_run",
            "tests/unit/engine/test_after_an_end.py::"
            "test_streams_go_on_and_waiting_requests_run_after_kills_at_random_moments",
        ),
    ),
)


def recovery(told: Told) -> list[Words]:
    """Each way with its tests, and what was refused in these runs."""
    lines = [
        both(f"{shown.words['en']} ({', '.join(shown.tests)}).", f"{shown.words['ja']}（{'、'.join(shown.tests)}）。")
        for shown in SHOWN
    ]
    own = [found for found in told.outcome.figures if found.arm == told.candidate and not found.subgroup]
    failures = sum((Counter(found.failures) for found in own), Counter[str]())
    refused = sum(count for kind, count in failures.items() if kind.startswith("refused"))
    offered = sum(found.offered for found in own)
    return [
        *lines,
        both(
            f"In these runs {told.candidate} refused {refused:,} of {offered:,} requests. Going back was not "
            "exercised in them; the tests above do that.",
            f"今回の実行で {told.candidate} が断った要求は {offered:,} 件中 {refused:,} 件。"
            "差し戻しは今回の実行では行っておらず、上記のテストで確かめている。",
        ),
    ]
