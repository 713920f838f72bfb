// rabit's interface; <rabit/rabit.h> has it.
#ifndef RABIT_H_
#define RABIT_H_
#include "rabit/rabit.h"
#endif  // RABIT_H_
