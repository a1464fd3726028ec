# SPDX-License-Identifier: GPL-2.0-or-later
"""Work handed out to workers on this machine and others, with Dask distributed.

In come units (`base.elsewhere.Unit`); out come outcomes, whose entries are then in the
cache as if they had been made here.  It knows neither kernels nor guests: a table has
the function that does the units of each kind.

**Unit of work.**  The kernels of a group of series (base and patched, in one output
directory), a series in one compile variant, a guest, one of the boots that count.  Each
has the key under which kstall's cache has the result, or one made of such keys, and it
is Dask's key as well: a request for a unit that is in progress waits for it, even if
another client asked for it first, and what was made already is not made again.

**Results** are a few values and digests.  What is large is an entry of the cache, and
goes as an archive into the *store* under its SHA-256, which is verified before it is
unpacked.  The store is a directory or whatever else fsspec can write to.  It also has
a note under the key of each unit that was done: a client that was away finds there what
was finished meanwhile.

**The verdict is that of one machine**, as all judging stays with the client: it runs
the same pipeline, and finds in its cache what workers made.  A kernel that no worker
could build it builds itself, so that the error is its own compiler's.  The outcome of a
guest counts wherever it was booted: a kernel that panicked on a worker has panicked,
and is not tried elsewhere.  A unit goes to another worker only if the first one is
faulty (its disk is full, its KVM does not work).

**Scheduling.**  A worker offers Dask's resources: slots, memory, disk, room for one
build, and properties such as the version of its compiler, of which nothing is used up.
A unit states its needs in the same terms.  A need that no worker meets is reported at
once and by name.  Objects of two compilers never meet, for a unit needs the compiler
that is in its key, and the worker compares the keys.  Kernels come first, and of the
others those that take longest.

**Faults.**  Every program of a worker runs in a PID namespace that dies with it, so a
worker that is killed leaves nothing, and Dask gives its units to others.  A client that
goes away leaves finished work in the store.  Without a scheduler a run ends without a
verdict, and the next one reuses what was done.
"""

from .client import Farm
from .opened import Where, opened, slurm_cluster
from .place import reserved
from .scheduler import scheduler
from .shelf import Shelf
from .store import Artifact, Damaged, Store
from .transport import Tls, require_private
from .worker import Offer, leave, offer, work

__all__ = [
    "Artifact",
    "Damaged",
    "Farm",
    "Offer",
    "Shelf",
    "Store",
    "Tls",
    "Where",
    "leave",
    "offer",
    "opened",
    "require_private",
    "reserved",
    "scheduler",
    "slurm_cluster",
    "work",
]
