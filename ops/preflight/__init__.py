"""Checks the machine, the home folder and a spec before anything is started; `yatt doctor` prints the results."""
