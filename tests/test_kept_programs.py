"""A program that was kept on disk is taken for the same one, compiled alike, alone."""

from tests import forked

CODE = """
import pathlib
import jax
import jax.numpy as jnp
from tests import kept_programs, quick_compilation

kept_programs.use(pathlib.Path("programs"))
def product(x):
    return jnp.sin(x) @ x + 1

x = jnp.ones((3, 3))
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
for quickly in (False, True, False, True):
    quick_compilation.use(quickly)
    jax.clear_caches()
    del events[:]
    jax.jit(product)(x)
    print([event.split("/")[-1] for event in events if "cache_" in event])
"""


def test_programs_compiled_quickly_and_for_users_are_kept_apart(tmp_path):
    said = forked.run_code(CODE, tmp_path).stdout.splitlines()
    assert said == ["['cache_misses']"] * 2 + ["['cache_hits']"] * 2
    kept = [path.name for path in (tmp_path / "programs").glob("jit_product-*")]
    assert len(kept) == 2
    # Their names are those of whole files.
    assert all(name.count("-") == 2 for name in kept)
