"""How long optimizer steps, sketches and online learners take."""
