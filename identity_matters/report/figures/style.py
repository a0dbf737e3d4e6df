"""The looks that all figures share: colours, marks, fonts and the dark mode.

Nothing here depends on the user's Matplotlib settings.
"""

from typing import Any

import matplotlib

# Okabe and Ito's colours, which readers with colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Markers and dashes of their own tell series apart in grey, too.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (8, 3)),
    (0, (1, 3)),
)

# Symbols in which l, I, 1 and | cannot be confused.
NORM = r"$|||A|||$"
DEPTH_TIMES_NORM = r"$\ell\,|||A|||$"

_CHOSEN: dict[Any, Any] = {
    "axes.prop_cycle": f"cycler(color={COLOURS})",  # as in a matplotlibrc file
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.figsize": (7.0, 4.2),
    "font.size": 9.0,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.markersize": 4.0,
    "svg.fonttype": "none",  # text stays text
    # Identifiers of elements are hashes with this salt, not random: the same points
    # give the same bytes.
    "svg.hashsalt": "identity-matters",
}
# For `matplotlib.rc_context`: every setting, so that none of the user's is left.
SETTINGS = {**matplotlib.rcParamsDefault, **_CHOSEN}
# `rc_context` cannot restore the backend, and no figure here uses it.
del SETTINGS["backend"]

# The dark mode: each colour of the light mode -> the one that takes its place.
_DARK_GREYS = {
    "#ffffff": "#15181c",
    "#000000": "#e4e7eb",
    "#333333": "#c4cad0",
    "#808080": "#a5adb5",
}
# In the order of COLOURS, without black, which is among the greys.
_DARK_COLOURS = ("#4aa3e0", "#ff8a3c", "#2fc99b", "#e59cc5", "#ffc04d", "#a5dcff")
# Matplotlib gives text, and black marks and bands, no fill in an SVG, as black is the
# default. No rule of a colour finds them; they inherit this one.
_DARK_FILL = "svg{fill:#e4e7eb}"


def _dark_style() -> str:
    """CSS that changes the colours of an SVG for readers who prefer a dark page."""
    light_colours = [colour.lower() for colour in COLOURS[:-1]]
    dark_of = _DARK_GREYS | dict(zip(light_colours, _DARK_COLOURS, strict=True))
    rules = [
        f'[style*="{kind}: {light}"]{{{kind}:{dark} !important}}'
        for light, dark in dark_of.items()
        for kind in ("fill", "stroke")
    ]
    return f"@media (prefers-color-scheme: dark){{{_DARK_FILL}{''.join(rules)}}}"


DARK_STYLE = _dark_style()
