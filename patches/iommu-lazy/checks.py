# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the iommu-lazy series: what fails without its patch."""

from __future__ import annotations

import json

from kstall.evidence import Evidence, Verdict

_US = 1000


def nothing_waits_in_lazy_mode(ev: Evidence) -> Verdict:
    """What waits is seen at the driver's function, with the times of both ends."""
    v = Verdict()
    load = ev.workload("disk-lazy")
    lines = list(map(json.loads, load.stdout.splitlines()))
    (probes,) = (line for line in lines if line["what"] == "probes")
    phases = {line["name"]: line for line in lines if line["what"] == "phase"}
    v.equal("phases", sorted(phases), ["adjacent", "scattered", "small"])
    for name, phase in phases.items():
        begin, end = phase["begin_ns"], phase["end_ns"]
        v.equal(f"{name}: type of the group", phase["type"], "DMA-FQ")
        v.equal(f"{name}: sectors", phase["sectors"] * 512, phase["bytes"])
        unmapped = [
            size
            for event in load.events("unmap")
            if begin // _US <= event.ts_ns // _US <= end // _US
            and isinstance(size := event.fields["unmapped_size"], int)
        ]
        v.equal(f"{name}: bytes unmapped", sum(unmapped), phase["bytes"])
        # [asked, device, unmap begin, unmap end, sync begin, sync end, ...] in us
        waits = [
            wait for wait in probes["waits"] if begin // _US <= wait[4] <= end // _US
        ]
        v.equal(f"{name}: waits for the IOMMU", len(waits), 0)
    # Else the driver did not map it in the way that is asked about.
    pieces = min(phases["scattered"]["runs"])
    v.at_least("scattered: pieces of a request, least", pieces, 2)
    destroyed = [at for at, name in probes["entered"] if name == "dma_iova_destroy"]
    requests = phases["scattered"]["requests"]
    v.at_least("dma_iova_destroy()", len(destroyed), requests)
    return v
