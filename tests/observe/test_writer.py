"""A reader that does not read holds up nobody; what is dropped is told."""

import io
import os
import threading

from rustedvino.observe.writer import LineWriter


def test_lines_come_out_in_order() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    for number in range(1000):
        writer.write(str(number))
    assert writer.flush()
    assert stream.getvalue().splitlines() == [str(number) for number in range(1000)]
    writer.write("last")
    writer.close()
    assert stream.getvalue().endswith("999\nlast\n")
    assert not writer._thread.is_alive()


def test_a_full_pipe_holds_up_nobody_and_losses_are_told() -> None:
    read_end, write_end = os.pipe()
    line = "x" * 1000
    with os.fdopen(write_end, "w") as stream:
        writer = LineWriter(stream, max_pending=50)
        writer.write("x" * 1_000_000)  # more than a pipe holds; a blocking write would stop here for ever
        assert not writer.flush(0.05)
        for _ in range(2000):
            writer.write(line)
        dropped = writer.dropped
        assert dropped > 1000
        taken: list[bytes] = []

        def drain() -> None:
            while data := os.read(read_end, 65536):
                taken.append(data)

        reader = threading.Thread(target=drain)
        reader.start()
        assert writer.flush(10)
        writer.write("after")
        writer.close()
    reader.join(10)
    os.close(read_end)
    lines = b"".join(taken).decode().splitlines()
    assert lines[-2:] == [f"({dropped} log records were dropped: nobody read the log fast enough)", "after"]
    assert len(lines) == 1 + 2000 - dropped + 2
    assert writer.dropped == 0


def test_a_stream_that_broke_is_left_alone() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w")
    writer = LineWriter(stream)
    writer.write("lost")
    assert writer.flush(10)
    writer.write("lost too")
    assert writer.flush(10)
    writer.close()
    try:
        stream.close()
    except BrokenPipeError:
        pass  # what it buffered cannot be written
