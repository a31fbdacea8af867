"""What one run of a block may use."""

from dataclasses import dataclass

MIB = 1_048_576


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one run; a driver never goes beyond its own, whatever a caller asks for.

    Raises: ValueError for a bound that is not above zero.
    """

    wall_seconds: float = 2.0
    """From the start of the code to its value; waiting for a worker is not counted."""
    memory_bytes: int = 64 * MIB
    """Of the interpreter's heap. The whole process is bounded too, 32 MiB above the driver's own bound."""
    output_bytes: int = 262_144
    """Of what is printed, and again of the value as JSON."""
    recursion_frames: int = 400
    """Calls within calls."""

    def __post_init__(self) -> None:
        if not (
            self.wall_seconds > 0 and self.memory_bytes > 0 and self.output_bytes > 0 and self.recursion_frames > 0
        ):
            raise ValueError("every limit of a block must be above zero")

    def within(self, ceiling: "Limits") -> "Limits":
        """The smaller of each."""
        return Limits(
            min(self.wall_seconds, ceiling.wall_seconds),
            min(self.memory_bytes, ceiling.memory_bytes),
            min(self.output_bytes, ceiling.output_bytes),
            min(self.recursion_frames, ceiling.recursion_frames),
        )
