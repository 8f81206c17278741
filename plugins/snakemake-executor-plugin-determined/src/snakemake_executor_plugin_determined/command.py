"""One job as a Determined command: its configuration, and the script that runs the job and leaves its exit code on the shared file system.

The master's word on how a command ended is not enough: a killed one reads "exited successfully", and a restarted master may have
forgotten it. So the script writes the exit code to a file, and touches another while the job runs; the API only tells liveness.
"""

import shlex
from pathlib import Path
from typing import Any

UNSEEN = 97
"""Exit status of a command whose node does not see, or may not write, the record's folder."""

DOUBLE = 98
"""Exit status of a second command for the same ticket: the answer to the first request was lost and came true later."""

BEATS_PER_GRACE = 9
"""A sign of life is a touched file; several fall into the time after which silence counts as death."""


def script(job: str, workdir: Path, folder: Path, grace: float) -> str:
    """The shell script of a command; plain sh, because images differ.

    Args:
        job: Snakemake's own command line for the job.
        workdir: Where it runs.
        folder: The record's, where `exit` and `alive` are written.
        grace: Seconds without a sign of life after which the executor may give the command up.
    """
    inside, pause = shlex.quote(str(folder)), f"{max(grace / BEATS_PER_GRACE, 0.1):.3g}"
    return f"""\
#!/bin/sh
cd {shlex.quote(str(workdir))} || exit {UNSEEN}
mkdir {inside}/claimed || exit {DOUBLE}
while kill -0 $$ 2>/dev/null; do : > {inside}/alive; sleep {pause}; done > /dev/null 2>&1 &
beat=$!
( {job} )
code=$?
kill $beat 2>/dev/null
echo $code > {inside}/exit.new && mv {inside}/exit.new {inside}/exit
exit $code
"""


def entrypoint(script_path: Path) -> list[str]:
    """Argument list that runs the script, or says that the node does not see it.

    Docker creates a missing `work_dir`, so an unseen folder is an empty one and `cd` into it would succeed: look for the script itself.
    """
    path, folder = shlex.quote(str(script_path)), shlex.quote(str(script_path.parent))
    complaint = shlex.quote(f"This node does not see {script_path.parent}, or may not write there.")
    return [
        "/bin/sh",
        "-c",
        f"test -r {path} && test -w {folder} || {{ echo {complaint}; exit {UNSEEN}; }}; exec /bin/sh {path}",
    ]


def configuration(
    *,
    description: str,
    script_path: Path,
    workdir: Path,
    slots: int,
    image: str,
    pool: str | None,
    mounts: list[dict[str, Any]],
    variables: dict[str, str],
) -> dict[str, Any]:
    """Body of `config` at POST /commands. The master refuses unknown keys; `slots` is always sent because its default is 1."""
    return {
        "description": description,
        "entrypoint": entrypoint(script_path),
        "work_dir": str(workdir),
        "resources": {"slots": slots} | ({} if pool is None else {"resource_pool": pool}),
        "environment": {
            "image": image,
            "environment_variables": [
                f"{name}={value}" for name, value in sorted(variables.items())
            ],
        },
        "bind_mounts": mounts,
    }
