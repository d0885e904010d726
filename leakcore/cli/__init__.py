"""The `leakcore` command: `root` has its main group, `commands` the commands by the question that they answer."""

from leakcore.cli.root import main as main
