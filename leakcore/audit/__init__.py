"""The main job: audit a DP-SGD run and report what was bounded, attacked and proved."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore._base.progress import progress_bars as progress_bars
    from leakcore.audit.claim.measure import claim as claim
    from leakcore.audit.claim.report import ClaimReport as ClaimReport
    from leakcore.audit.claim.request import ClaimConfig as ClaimConfig
    from leakcore.audit.comparison import Comparison as Comparison
    from leakcore.audit.comparison import compare as compare
    from leakcore.audit.config_file import LACKING as LACKING
    from leakcore.audit.config_file import config_schema as config_schema
    from leakcore.audit.config_file import read_config as read_config
    from leakcore.audit.config_file import read_settings as read_settings
    from leakcore.audit.config_file import with_options as with_options
    from leakcore.audit.hyperparameters.layers import where_it_sits as where_it_sits
    from leakcore.audit.hyperparameters.measure import run as run
    from leakcore.audit.hyperparameters.report import RunReport as RunReport
    from leakcore.audit.hyperparameters.request import AuditConfig as AuditConfig
    from leakcore.audit.plan import AuditPlan as AuditPlan
    from leakcore.audit.plan import PlannedAudit as PlannedAudit
    from leakcore.audit.plan import plan as plan
    from leakcore.audit.report_schema import report_schema as report_schema
    from leakcore.audit.reports import ListedNumber as ListedNumber
    from leakcore.audit.reports import ListedReport as ListedReport
    from leakcore.audit.reports import ReportList as ReportList
    from leakcore.audit.reports import list_reports as list_reports
    from leakcore.audit.scores.from_scores import Retrained as Retrained
    from leakcore.audit.scores.from_scores import from_scores as from_scores
    from leakcore.audit.scores.report import ScoresReport as ScoresReport
    from leakcore.audit.scores.request import ScoreFile as ScoreFile
    from leakcore.audit.scores.request import read_scores as read_scores
    from leakcore.audit.scores.statistics import area as area
    from leakcore.audit.scores.statistics import area_limits as area_limits
    from leakcore.audit.scores.statistics import rate_limits as rate_limits
    from leakcore.audit.selftest import SelfTest as SelfTest
    from leakcore.audit.selftest import selftest as selftest
    from leakcore.audit.shared.claimed_epsilon import proved_epsilon as proved_epsilon
    from leakcore.audit.shared.doctor import diagnose as diagnose
    from leakcore.audit.shared.format import fixed as fixed
    from leakcore.audit.shared.format import guarantee as guarantee
    from leakcore.audit.shared.format import number as number
    from leakcore.audit.shared.format import poisson_claim as poisson_claim
    from leakcore.audit.shared.format import power as power
    from leakcore.audit.shared.format import understated as understated
    from leakcore.audit.shared.report import AuditReport as AuditReport
    from leakcore.audit.shared.report import require_report_folder as require_report_folder
    from leakcore.audit.trace.canaries import CanaryReport as CanaryReport
    from leakcore.audit.trace.canaries import from_canaries as from_canaries
    from leakcore.audit.trace.from_trace import from_trace as from_trace
    from leakcore.audit.trace.from_trace import join as join
    from leakcore.audit.trace.report import TraceReport as TraceReport
    from leakcore.audit.trace.request import holds_canaries as holds_canaries

_NAMES = {
    "AuditConfig": ".hyperparameters.request",
    "CanaryReport": ".trace.canaries",
    "from_canaries": ".trace.canaries",
    "ClaimConfig": ".claim.request",
    "ClaimReport": ".claim.report",
    "claim": ".claim.measure",
    "Comparison": ".comparison",
    "compare": ".comparison",
    "AuditReport": ".shared.report",
    "list_reports": ".reports",
    "ReportList": ".reports",
    "ListedReport": ".reports",
    "ListedNumber": ".reports",
    "RunReport": ".hyperparameters.report",
    "TraceReport": ".trace.report",
    "diagnose": ".shared.doctor",
    "from_scores": ".scores.from_scores",
    "from_trace": ".trace.from_trace",
    "join": ".trace.from_trace",
    "read_scores": ".scores.request",
    "ScoreFile": ".scores.request",
    "Retrained": ".scores.from_scores",
    "ScoresReport": ".scores.report",
    "AuditPlan": ".plan",
    "PlannedAudit": ".plan",
    "plan": ".plan",
    "progress_bars": "leakcore._base.progress",
    "run": ".hyperparameters.measure",
    "SelfTest": ".selftest",
    "selftest": ".selftest",
    "where_it_sits": ".hyperparameters.layers",
}
_SHARED = {
    "area": ".scores.statistics",
    "area_limits": ".scores.statistics",
    "config_schema": ".config_file",
    "holds_canaries": ".trace.request",
    "LACKING": ".config_file",
    "fixed": ".shared.format",
    "guarantee": ".shared.format",
    "number": ".shared.format",
    "poisson_claim": ".shared.format",
    "power": ".shared.format",
    "proved_epsilon": ".shared.claimed_epsilon",
    "read_config": ".config_file",
    "rate_limits": ".scores.statistics",
    "read_settings": ".config_file",
    "report_schema": ".report_schema",
    "require_report_folder": ".shared.report",
    "understated": ".shared.format",
    "with_options": ".config_file",
}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
