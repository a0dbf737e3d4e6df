"""Imported last by the server of `tests.forked`: its objects are garbage never again.

A forked process would visit them at each collection, the one at its end included, and
so copy the pages that they share with the server: half of the time of a short command.
"""

import gc

gc.collect()
gc.freeze()
