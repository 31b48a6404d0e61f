"""What is printed and logged while a study goes on."""

import statistics

from tqdm import tqdm

from detector.commands.evolve.individual import Individual, best
from detector.commands.evolve.study import Study
from detector.system.errors import InputError
from detector.system.rank_zero import rank_zero_print
from detector.training.trainer import Trainer


class Progress:
    """A bar with the best so far and the time left, a line for each individual that ends from now on, and the user's loggers.

    limit: individuals of the study at most; None: all · seeds: trainings of each · workers: of this command.
    """

    def __init__(self, study: Study, limit: int | None, seeds: int, workers: int, trainer: Trainer) -> None:
        self.study, self.workers, self.trainer = study, workers, trainer
        plan = study.plan
        self.total = min(plan.trials, limit or plan.trials)
        self.seen = {i.number for i in study.individuals() if i.state != "running"}
        text = f"{plan.generations} generations of {plan.population}: {self.total} individuals"
        text += f", {seeds} trainings each" if seeds > 1 else ""
        text += f", {len(self.seen)} of them done" if self.seen else ""
        rank_zero_print(
            f"{text}, {trainer.max_epochs} epochs a training, {workers} at a time; the first will tell how long it takes"
        )
        self.bar = tqdm(total=self.total, initial=len(self.seen), bar_format="{n_fmt}/{total_fmt} |{bar:30}| {desc}")
        self.knows_cost = bool(self.seen)

    def update(self) -> None:
        """Tell what is new.

        Raises:
            InputError: nothing but failures.
        """
        individuals = self.study.individuals()
        ended = [i for i in individuals if i.state != "running"]
        new = [i for i in ended if i.number not in self.seen]
        if not new:
            return
        winner = best(ended)
        for individual in new:
            self.seen.add(individual.number)
            self.bar.update()
            self.bar.write(line(individual))
            self._log(individual, winner)
        mean, left = statistics.fmean(i.seconds for i in ended), self.total - len(ended)
        hours = mean * max(left, 0) / max(self.workers, len(individuals) - len(ended)) / 3600
        if not self.knows_cost:
            self.knows_cost = True
            self.bar.write(f"the first took {mean:.0f} s; the {left} that are left take about {duration(hours)}")
        found = f"best {winner.fitness:.4g} (trial {winner.number}), " if winner else ""
        self.bar.set_description_str(f"{found}{duration(hours)} left")
        if len(ended) >= self.study.plan.population and all(i.state == "failed" for i in ended):
            raise InputError(f"all {len(ended)} trainings failed; the first: {ended[0].reason}")

    def _log(self, individual: Individual, winner: Individual | None) -> None:
        content = {f"evolve/{name}": value for name, value in individual.values.items()}
        if individual.fitness is not None:
            content["evolve/fitness"] = individual.fitness
        if winner and winner.fitness is not None:
            content["evolve/best"] = winner.fitness
        for logger in self.trainer.loggers:
            logger.log_metrics(content, step=individual.number)
            logger.save()


def line(individual: Individual) -> str:
    """What came of an individual that has ended."""
    place = f"trial {individual.number} (generation {individual.generation})"
    if individual.state == "failed":
        return f"{place} failed: {individual.reason}"
    fitness = "none" if individual.fitness is None else f"{individual.fitness:.4g}"
    return f"{place}: fitness {fitness}, {individual.seconds:.0f} s" + (f", {individual.reason}" if individual.reason else "")


def duration(hours: float) -> str:
    """
    >>> duration(0.01), duration(0.5), duration(30)
    ('36 s', '30 min', '30.0 h')
    """
    if hours < 1 / 30:
        return f"{hours * 3600:.0f} s"
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.1f} h"
