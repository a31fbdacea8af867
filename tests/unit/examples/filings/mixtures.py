"""Gas mixtures of all components, for property tests."""

from hypothesis import strategies as st

HEAVIER = ("iso_butane", "n_butane", "iso_pentane", "n_pentane", "hexanes_plus")
REST = ("nitrogen", "carbon_dioxide", "oxygen", "hydrogen_sulfide")
NAMES = ("methane", "ethane", "propane", *HEAVIER, *REST)
SHARES = st.tuples(*[st.floats(min_value=0.01, max_value=1)] * len(NAMES))


def composition_of(shares: tuple[float, ...]) -> dict[str, float]:
    """Mole percent that add up to 100."""
    return {name: share * 100 / sum(shares) for name, share in zip(NAMES, shares, strict=True)}
