"""The ``busmq`` command: look into queues, push and follow. Each file has one command;
``busmq_spark/cli_app.py`` lists them.

Rules of every command:

1. Stdout carries the answer and nothing else; notes, progress and errors go to stderr. With
   ``--json`` stdout is JSON, one object a line.
2. Exit codes: 0 done (also when the reader of a pipe has seen enough), 1 an error met at run time,
   2 a wrong option or argument, 3 ``info`` found a server that is full or evicts,
   130 Ctrl-C, 143 SIGTERM. ``doctor`` has its own: 0, 1, 2. No stack trace for anything that a
   user can cause.
3. Nothing from a queue reaches the terminal as it is: ``output.py`` escapes control
   characters, and no value is read as markup.
"""
