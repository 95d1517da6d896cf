"""Where a run goes on: which state is restored, and why newer ones are not."""
