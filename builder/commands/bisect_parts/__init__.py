"""The parts of `bisect`: its beginning, the candidates, their servers, the verdicts, and what it comes to."""
