"""The ring keeps the newest lines, within its bounds, from any thread."""

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.observe.ring import LogRing


@given(
    texts=st.lists(st.text("ab\n", max_size=12), max_size=60),
    max_lines=st.integers(1, 20),
    max_chars=st.integers(1, 80),
    lines=st.integers(0, 30),
)
@settings(max_examples=150, deadline=None)
def test_tail_is_the_end_of_what_was_appended(texts: list[str], max_lines: int, max_chars: int, lines: int) -> None:
    ring = LogRing(max_lines, max_chars)
    for text in texts:
        ring.append(text)
    everything = [line[:max_chars] for text in texts for line in text.split("\n")]
    kept = ring.tail(10_000)
    assert len(kept.lines) <= max_lines
    assert sum(map(len, kept.lines)) <= max_chars
    assert kept.last == len(everything)
    assert kept.lines == everything[len(everything) - len(kept.lines) :]
    assert kept.first == len(everything) - len(kept.lines) + 1
    if len(kept.lines) < min(max_lines, len(everything)):  # it is the size that binds
        older = everything[len(everything) - len(kept.lines) - 1]
        assert sum(map(len, kept.lines)) + len(older) > max_chars
    page = ring.tail(lines)
    assert page.lines == (kept.lines[-lines:] if lines else [])


def test_a_follower_gets_each_line_once_and_sees_what_it_missed() -> None:
    ring = LogRing(max_lines=5)
    ring.append("1")
    ring.append("2\n3")
    page = ring.tail(10)
    assert page.lines == ["1", "2", "3"]
    assert ring.tail(10, after=page.last).lines == []
    ring.append("4")
    page = ring.tail(10, after=page.last)
    assert (page.lines, page.first, page.last) == (["4"], 4, 4)
    for number in range(5, 13):
        ring.append(str(number))
    page = ring.tail(10, after=page.last)
    assert (page.lines, page.first) == (["8", "9", "10", "11", "12"], 8)
    assert ring.tail(2, after=9).lines == ["11", "12"]
    assert ring.tail(10, after=99).lines == []


def test_threads_may_append_while_others_read() -> None:
    ring = LogRing(max_lines=100)
    begin = threading.Barrier(5)

    def append(name: str) -> None:
        begin.wait()
        for number in range(500):
            ring.append(f"{name} {number}")

    threads = [threading.Thread(target=append, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    begin.wait()
    pages = [ring.tail(100) for _ in range(50)]
    for thread in threads:
        thread.join()
    for page in [*pages, ring.tail(100)]:
        for name in "abcd":
            numbers = [int(line.split()[1]) for line in page.lines if line[0] == name]
            assert numbers == sorted(numbers)
    assert ring.tail(0).last == 2000
    assert len(ring.tail(1000).lines) == 100
