"""Progress where nobody watches: few plain lines on stderr, nothing on stdout."""

from ekiden.build.progress import PLAIN_LINES, byte_progress, progress


def test_a_log_gets_few_lines_however_long_the_job(capsys):
    with progress("work", 1_000) as advance:
        for _ in range(1_000):
            advance()
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == PLAIN_LINES
    assert lines[-1] == "work: 1,000 of 1,000 requests"
    assert captured.out == ""


def test_bytes_are_told_by_quarters_and_by_kind_of_work(capsys):
    with byte_progress() as report:
        for done in range(101):
            report("fetching", done * 10**6, 100 * 10**6)
        report("converting", 5, 0)
        report("converting", 6, 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "fetching: 0 of 100 MB",
        "fetching: 25 of 100 MB",
        "fetching: 50 of 100 MB",
        "fetching: 75 of 100 MB",
        "fetching: 100 of 100 MB",
        "converting",
    ]


def test_nothing_to_report_prints_nothing(capsys):
    with byte_progress():
        pass
    assert capsys.readouterr().err == ""


def test_a_library_says_nothing_where_nobody_watches(capsys):
    with progress("work", 10, plain_lines=0) as advance, byte_progress(plain_lines=0) as report:
        for _ in range(10):
            advance()
        report("fetching", 5, 5)
    assert capsys.readouterr().err == ""
