"""The `leakcore` command: `root` has its main group, `commands` a file for each command."""

from leakcore.cli.root import main as main
