"""Work that takes its time."""


def run(rounds: int) -> dict[str, int]:
    """Turns so many times ten thousand."""
    turned = 0
    for _ in range(rounds):
        for _ in range(10_000):
            turned += 1
    return {"rounds": turned // 10_000}
