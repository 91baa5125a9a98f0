"""All findings about this host, in the order in which they depend on each other."""

import shutil

from trialyard.core.errors import SandboxUnavailable
from trialyard.sandboxes.doctor.boxes import default_boxes, oci_boxes, root_boxes
from trialyard.sandboxes.doctor.finding import Finding
from trialyard.sandboxes.doctor.host import host_findings, programs
from trialyard.sandboxes.doctor.ids import ids
from trialyard.sandboxes.oci import RUNTIMES, WITHOUT_DESCRIPTORS, OciBackend, find_runtime


async def examine(*, allow_vulnerable_runtime: bool = False) -> list[Finding]:
    """Try everything that boxes need on this host.

    An OCI runtime with known escapes is started only if `allow_vulnerable_runtime`.
    """
    findings = programs()
    if not all(finding.ok for finding in findings):
        return findings
    findings += [*host_findings(), *ids()]
    if all(finding.ok for finding in findings if finding.required):
        findings += await default_boxes()
        findings += await root_boxes()
    if all(finding.ok for finding in findings if finding.required):
        for name in (*RUNTIMES, *filter(shutil.which, WITHOUT_DESCRIPTORS)):
            findings += await _oci(name, allow_vulnerable_runtime)
    return findings


async def _oci(name: str, allow_vulnerable_runtime: bool) -> list[Finding]:
    """Nothing that is wrong with an OCI runtime makes the default backend unsafe."""
    title = f"OCI runtime {name}"
    try:
        runtime = find_runtime(name)
        backend = OciBackend(name, allow_vulnerable_runtime=allow_vulnerable_runtime)
    except SandboxUnavailable as error:
        found = "refused" if "missing" not in str(error) else "not installed (not needed)"
        return [Finding(title, False, found, cure=str(error), required=False)]
    detail = f"{runtime.version} at {runtime.path}"
    if runtime.verdict:
        detail += f", with known escapes: {runtime.verdict}"
    return [Finding(title, True, detail, required=False), *await oci_boxes(backend, name)]
