"""The decisions of the transcript on two discrete GPUs (``-s`` prints it)."""

from qa.two_gpus import Decision, run

RAM = "system_ram"
UTILITY_GB = 0.04
PROCESS_GB = 0.16
BIG, MIDDLE, SMALL = 20.25, 11.75, 6.75
"""What chat-32b, chat-14b or coder-14b, and chat-7b take of a card: weights, pool and a GPU's context."""


def used(first_card: float, second_card: float) -> dict[str, float]:
    processes = bool(first_card) + bool(second_card)
    return {RAM: round(UTILITY_GB + processes * PROCESS_GB, 2), "GPU.1": first_card, "GPU.2": second_card}


EXPECTED = [
    Decision(step="The largest goes to the card that holds it", outcome="load", device="GPU.2"),
    Decision(step="chat-32b: ready on GPU.2", outcome="ready", used_gb=used(0, BIG)),
    Decision(step="The next goes where most is free", outcome="load", device="GPU.1"),
    Decision(step="chat-14b: ready on GPU.1", outcome="ready", used_gb=used(MIDDLE, BIG)),
    Decision(step="A third needs room: the plan names who goes", outcome="load", device="GPU.1", victims=("chat-14b",)),
    Decision(step="chat-14b: drains", outcome="draining", used_gb=used(MIDDLE, BIG)),
    Decision(step="chat-14b: its process has been reaped", outcome="reaped", used_gb=used(0, BIG)),
    Decision(step="chat-7b: ready on GPU.1", outcome="ready", used_gb=used(SMALL, BIG)),
    Decision(step="Too large for a card: the CPU has the memory", outcome="load", device="CPU"),
    Decision(step="Too large for everything: refused for good", outcome="refuse", limit=RAM, retry=False),
    Decision(step="Both cards are taken: automatic placement goes on to the CPU", outcome="load", device="CPU"),
    Decision(
        step="A model that is bound to a card is refused, for now",
        outcome="refuse",
        limit="vram",
        protected={"chat-7b": "busy"},
        retry=True,
    ),
    Decision(step="By force the busy one goes", outcome="load", device="GPU.1", victims=("chat-7b",)),
    Decision(step="chat-7b: drains", outcome="draining", used_gb=used(SMALL, BIG)),
    Decision(step="chat-7b: its process has been reaped", outcome="reaped", used_gb=used(0, BIG)),
    Decision(step="coder-14b: ready on GPU.1", outcome="ready", used_gb=used(MIDDLE, BIG)),
    Decision(
        step="By force, too, the pinned one stays",
        outcome="refuse",
        limit="vram",
        protected={"chat-32b": "pinned"},
        retry=False,
    ),
    Decision(step="coder-14b: not_loaded", outcome="not_loaded", used_gb=used(0, BIG)),
]


async def test_the_decisions_on_two_cards() -> None:
    lines: list[str] = []

    def show(line: str) -> None:
        print(line)
        lines.append(line)

    decisions = await run(show)
    assert decisions == EXPECTED
    text = "\n".join(lines)
    assert "evict chat-7b: 6.75 GB of GPU.1 + 0.16 GB of system_ram, priority 0, busy" in text
    assert "refused by vram (GPU.1): 11.75 GB needed, 7.36 GB free, 0.00 GB evictable; retry later" in text
    assert "its request ended with: 'chat-7b' was unloaded" in text
