# make demo    train the arithmetic model by PPO through all three services
# make test    run the tests
# make chaos   kill everything for a quarter of an hour, and see that nothing is lost or done twice
# make check   style and types
# Further arguments for a target's command: make demo ARGS="--seed 1"

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: demo test chaos check setup

demo: setup
	@$(BIN)/rollstream demo $(ARGS)

test: setup
	@$(BIN)/python -m pytest $(ARGS)

chaos: setup
	$(BIN)/python -m tests.chaos.soak $(ARGS)
	$(BIN)/python -m pytest -m chaos_long tests/chaos

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy shared services examples benchmarks tests

setup:
	@PYTHON="$(PYTHON)" sh scripts/setup.sh
