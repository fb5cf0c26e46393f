"""A real job is killed again and again, and its output counted: `python -m fencepost_proof.kill`.

points     every crash point in the code, and which of them no killed job can pass
scene      the job as a process: started, killed, stopped, woken, judged
scouting   which points a job passes
nemesis    attacks from outside: on a task, on a server, by sleep
killer     one chain of kills through one checkpoint
report     tables, verdict, exit code
"""
