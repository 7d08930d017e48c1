"""Steps of an engine that are watched, or spoiled by logits that are no numbers."""

import torch


def plans_of(core):
    """A list that gets the plan of each step from now on."""
    run, plans = core.loaded.runner.run, []
    core.loaded.runner.run = lambda plan, *fed: plans.append(plan) or run(plan, *fed)
    return plans


def num_fed(plan):
    """The tokens that a step is fed."""
    return sum(work.count for work in plan.work)


def poison(engine, is_bad):
    """Have the logits be NaN of every row for which `is_bad(work, row)` is true; a work item's rows count from 0."""
    run = engine.core.loaded.runner.run

    def poisoned(plan, *fed):
        plan, logits_RV = run(plan, *fed)
        rows = [(work, row) for work in plan.work for row in range(work.num_logits)]
        logits_RV = logits_RV.clone()
        logits_RV[[number for number, (work, row) in enumerate(rows) if is_bad(work, row)]] = torch.nan
        return plan, logits_RV

    engine.core.loaded.runner.run = poisoned
