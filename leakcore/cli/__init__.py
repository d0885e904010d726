"""The `leakcore` command: `root` has its main group; a chapter has one command, or those that answer one question."""

from leakcore.cli.root import main as main
