module ebb.test/work

go 1.19
