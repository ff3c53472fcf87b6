"""The core's half of scheduling: the ledger policies reserve on, the loop around narrow ones, the plan check."""

from tokenloom.scheduling.fading_line import FadingLine
from tokenloom.scheduling.lazy_order import least_first
from tokenloom.scheduling.ledger import StepLedger
from tokenloom.scheduling.plan_check import check_plan
from tokenloom.scheduling.policy_scheduler import PolicyScheduler
from tokenloom.scheduling.waiting_order import WaitingOrder
from tokenloom.scheduling.waiting_table import WaitingRows, WaitingTable

__all__ = [
    "FadingLine",
    "PolicyScheduler",
    "StepLedger",
    "WaitingOrder",
    "WaitingRows",
    "WaitingTable",
    "check_plan",
    "least_first",
]
