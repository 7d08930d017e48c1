"""Progress that remembers what it was told."""

from tokenmill.hub.progress import Progress


class Told(Progress):
    def __init__(self):
        self.stages, self.counts = [], []

    def stage(self, text):
        self.stages.append(text)

    def advance(self, done, total):
        self.counts.append((done, total))
