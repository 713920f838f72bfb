// Nothing: rabit's has macros for one compiler that Warren's headers do not know. For programs that include it.
#ifndef RABIT_BASE_H_
#define RABIT_BASE_H_

#endif  // RABIT_BASE_H_
