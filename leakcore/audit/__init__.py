"""The main job: audit a DP-SGD run and report what was bounded, attacked and proved."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore._base.progress import progress_bars as progress_bars
    from leakcore.audit.canaries.from_canaries import from_canaries as from_canaries
    from leakcore.audit.canaries.from_canaries import holds_canaries as holds_canaries
    from leakcore.audit.canaries.report import CanaryReport as CanaryReport
    from leakcore.audit.claim.config import ClaimConfig as ClaimConfig
    from leakcore.audit.claim.report import ClaimReport as ClaimReport
    from leakcore.audit.claim.run import claim as claim
    from leakcore.audit.comparison import Comparison as Comparison
    from leakcore.audit.comparison import compare as compare
    from leakcore.audit.config.file import LACKING as LACKING
    from leakcore.audit.config.file import read_config as read_config
    from leakcore.audit.config.file import read_settings as read_settings
    from leakcore.audit.config.file import with_options as with_options
    from leakcore.audit.config.schema import config_schema as config_schema
    from leakcore.audit.doctor import diagnose as diagnose
    from leakcore.audit.hyperparameters.config import AuditConfig as AuditConfig
    from leakcore.audit.hyperparameters.report import RunReport as RunReport
    from leakcore.audit.hyperparameters.run import require_report_folder as require_report_folder
    from leakcore.audit.hyperparameters.run import run as run
    from leakcore.audit.plan import AuditPlan as AuditPlan
    from leakcore.audit.plan import PlannedAudit as PlannedAudit
    from leakcore.audit.plan import plan as plan
    from leakcore.audit.report.area import area as area
    from leakcore.audit.report.area import area_limits as area_limits
    from leakcore.audit.report.format import fixed as fixed
    from leakcore.audit.report.format import guarantee as guarantee
    from leakcore.audit.report.format import number as number
    from leakcore.audit.report.format import poisson_claim as poisson_claim
    from leakcore.audit.report.format import power as power
    from leakcore.audit.report.format import understated as understated
    from leakcore.audit.report.leakage_section import where_it_sits as where_it_sits
    from leakcore.audit.report.report import AuditReport as AuditReport
    from leakcore.audit.report_list.list_reports import list_reports as list_reports
    from leakcore.audit.report_list.listed import ListedNumber as ListedNumber
    from leakcore.audit.report_list.listed import ListedReport as ListedReport
    from leakcore.audit.report_list.report_list import ReportList as ReportList
    from leakcore.audit.report_schema import report_schema as report_schema
    from leakcore.audit.scores.file import ScoreFile as ScoreFile
    from leakcore.audit.scores.file import read_scores as read_scores
    from leakcore.audit.scores.from_scores import Retrained as Retrained
    from leakcore.audit.scores.from_scores import from_scores as from_scores
    from leakcore.audit.scores.rates import rate_limits as rate_limits
    from leakcore.audit.scores.report import ScoresReport as ScoresReport
    from leakcore.audit.selftest import SelfTest as SelfTest
    from leakcore.audit.selftest import selftest as selftest
    from leakcore.audit.stated_epsilon import proved_epsilon as proved_epsilon
    from leakcore.audit.trace.from_trace import from_trace as from_trace
    from leakcore.audit.trace.join import join as join
    from leakcore.audit.trace.report import TraceReport as TraceReport

_NAMES = {
    "AuditConfig": ".hyperparameters.config",
    "CanaryReport": ".canaries.report",
    "from_canaries": ".canaries.from_canaries",
    "ClaimConfig": ".claim.config",
    "ClaimReport": ".claim.report",
    "claim": ".claim.run",
    "Comparison": ".comparison",
    "compare": ".comparison",
    "AuditReport": ".report.report",
    "list_reports": ".report_list.list_reports",
    "ReportList": ".report_list.report_list",
    "ListedReport": ".report_list.listed",
    "ListedNumber": ".report_list.listed",
    "RunReport": ".hyperparameters.report",
    "TraceReport": ".trace.report",
    "diagnose": ".doctor",
    "from_scores": ".scores.from_scores",
    "from_trace": ".trace.from_trace",
    "join": ".trace.join",
    "read_scores": ".scores.file",
    "ScoreFile": ".scores.file",
    "Retrained": ".scores.from_scores",
    "ScoresReport": ".scores.report",
    "AuditPlan": ".plan",
    "PlannedAudit": ".plan",
    "plan": ".plan",
    "progress_bars": "leakcore._base.progress",
    "run": ".hyperparameters.run",
    "SelfTest": ".selftest",
    "selftest": ".selftest",
    "where_it_sits": ".report.leakage_section",
}
_SHARED = {
    "area": ".report.area",
    "area_limits": ".report.area",
    "config_schema": ".config.schema",
    "holds_canaries": ".canaries.from_canaries",
    "LACKING": ".config.file",
    "fixed": ".report.format",
    "guarantee": ".report.format",
    "number": ".report.format",
    "poisson_claim": ".report.format",
    "power": ".report.format",
    "proved_epsilon": ".stated_epsilon",
    "read_config": ".config.file",
    "rate_limits": ".scores.rates",
    "read_settings": ".config.file",
    "report_schema": ".report_schema",
    "require_report_folder": ".hyperparameters.run",
    "understated": ".report.format",
    "with_options": ".config.file",
}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
