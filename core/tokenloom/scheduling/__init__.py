"""The core's half of scheduling: the ledger policies reserve on, the loop around narrow ones, the plan check."""

from tokenloom.scheduling.ledger import StepLedger
from tokenloom.scheduling.plan_check import check_plan
from tokenloom.scheduling.policy_scheduler import PolicyScheduler

__all__ = ["PolicyScheduler", "StepLedger", "check_plan"]
