"""How long engines and trainer take, from model cards or a recorded run, and which placement that favours."""
