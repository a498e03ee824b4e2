"""The console command: build, pretrain, evaluate, export, verify, inspect, doctor, explain."""
